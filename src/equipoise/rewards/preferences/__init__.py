"""Reward models from preferences between segments of behaviour, as functions on tensors.

======================  =========================================================================
``segments``            pieces of episodes, answers about pairs of them, and a split by episode
``model``               the ensemble of networks that rewards rows
``fit``                 the answers become the parameters of the model
``queries``             which pairs to ask about
``teacher``             a synthetic teacher, which answers by the true rewards
``demonstrations``      answers without a question
``guard``               signs that a policy exploits the model
======================  =========================================================================
"""
