"""Pictures of an ablation: arms, paired differences, dose curves, interactions, power, plans, audits."""
